"""What a page shows: figures, tables, the package's own source, claims."""
