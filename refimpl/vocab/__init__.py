"""What an id is: how the vocabulary is cut into shards, and how draft ids map to target ids."""
