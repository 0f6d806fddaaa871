"""Somebody's own photographs: features, an answer within seconds, doubts, duplicates, sorting."""
