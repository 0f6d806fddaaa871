"""Somebody's own photographs: features of a pretrained network, an answer within seconds, doubts, duplicates, sorting."""
