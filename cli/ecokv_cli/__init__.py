"""The `ecokv` command line. It parses, prints and exits; the work is done by `ecokv_local`."""
