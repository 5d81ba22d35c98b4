"""What topsmon says outside the live screen: text and JSON."""
