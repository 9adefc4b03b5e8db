"""Record formats of Kafka topics: JSON, raw bytes, and with a schema registry Avro and Protobuf."""
