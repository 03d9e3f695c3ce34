"""Checkpoints of ours in the training libraries of others. Each module imports one library, which the
caller has installed: transformers, lightning, accelerate, peft.
"""
