"""Find, open and read the files of a text. Only this package knows file formats."""
