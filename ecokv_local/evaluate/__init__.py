"""What a budget costs in quality: answers of every policy and budget, on made or own test sets."""
