//! Executes one typed operator on plain or channel-blocked tensors.
