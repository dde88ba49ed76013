"""What stayed of a prompt, and why: pictures, one page, and a trace."""
