"""The worker: claims a cell, checks its tree out, builds its runtime, runs pytest and streams every case back."""
