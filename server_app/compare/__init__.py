"""What runs say of each other: read from their folders, grouped by what differs, as tables and pictures."""
