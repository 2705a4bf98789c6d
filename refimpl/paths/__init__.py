"""The reference full gather and one file per local reduction; each file names its path like itself."""
