"""Many runs: which there are, processes that do them, and a choice on held-out samples."""
