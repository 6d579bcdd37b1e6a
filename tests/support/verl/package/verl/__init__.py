"""A stand-in for verl: the names that an agent loop imports, with the shapes that verl documents."""
