"""Publication of outputs, complete or not at all: new files, folders and remote objects."""
