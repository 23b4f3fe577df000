"""Runnable examples: one folder or manifest each."""
