//! A scheduler for programs that share a card beyond its memory: a daemon, and what one types.
//!
//! ```text
//!   programs, with libneap_hook.so ─► server ─► policy ─► orders         policy: whose turn, whose memory
//!                                                  └─► admission         whose deadlines are promised (neap-realtime)
//!   neap gpud, gputop, gpu run     ─► commands ─► server, report
//! ```

mod admission;
pub mod commands;
mod credentials;
mod policy;
mod program;
mod report;
mod server;
