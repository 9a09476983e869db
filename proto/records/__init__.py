"""Record batches: headers, records, compression, and the compiled codec with its Python twin."""
