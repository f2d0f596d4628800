"""Jobs whose models come from public packages and repositories, under budgets: see __main__.py."""
