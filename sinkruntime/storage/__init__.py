"""Places that hold files, local directories and S3: staging, publishing, small documents. Sinks import it."""
