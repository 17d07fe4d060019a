"""`--launch node`: one process per node, which starts the node's workers itself."""
