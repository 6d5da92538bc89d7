//! tracium-consumer
