"""One file per command. A command reads settings, calls the library and prints."""
