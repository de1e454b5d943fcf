"""Analyses of a call: inference, explanation, statistics, verification, models, previews."""
