"""What several table sinks share. Sinks import it; it imports no sink and no client library."""
