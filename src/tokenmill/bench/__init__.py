"""Load client and mock server: they talk HTTP like any client."""
