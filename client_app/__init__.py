"""The ClientApp: what a hospital runs."""
