//! Arena, lanes and Session: runs plans, never makes them.
