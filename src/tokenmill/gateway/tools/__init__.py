"""Tools a chat request offers: what may be declared, how models write calls, and how calls are read."""
