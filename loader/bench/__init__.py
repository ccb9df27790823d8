"""Comparisons with other loaders on the machine at hand; nothing else imports this."""
