"""Is the measured bandwidth what others measured, or what this machine had before?"""
