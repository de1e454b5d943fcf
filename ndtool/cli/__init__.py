"""The command line: commands and their options, output as text, JSON and HTML reports."""
