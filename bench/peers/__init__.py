"""Our policy beside what a user would edit into his model to save memory: python -m bench.peers"""
