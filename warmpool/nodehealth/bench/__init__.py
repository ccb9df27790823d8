"""What the rules of GPU health are worth, in simulated time. Run by hand; nothing imports it."""
