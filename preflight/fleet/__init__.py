"""WHO: node lists, inventories, promises and the job that is to start."""
