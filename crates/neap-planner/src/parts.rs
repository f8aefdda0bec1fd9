//! What plans are made of, for planners from elsewhere ([`OtherStrategy`](crate::OtherStrategy)).
//!
//! ```text
//!   BaseLayout ──► Schedule: slices, units ──► addresses ──► Window::simulate ──► assemble
//! ```

pub use crate::assemble::assemble;
pub use crate::base_layout::{BaseLayout, whole_weights};
pub use crate::preload::all_resident;
pub use crate::preload::place::addresses;
pub use crate::preload::residency::Window;
pub use crate::schedule::{Schedule, Slicing, Unit, Want};
