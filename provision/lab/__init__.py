"""A lab's repository: lab.yml, and what a member's account needs to work with it."""
