"""One module for each experiment of a chapter: its data, its model, its trial."""
