"""Small studies that show what the objectives do, on problems where the answer is known. They use the library's public surface only."""
