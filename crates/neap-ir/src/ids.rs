//! Ids: indices into the lists of a graph, typed.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// Index into [`crate::Graph::values`].
    ValueId
);
id!(
    /// Index into [`crate::Graph::nodes`]; also the node's place in the schedule.
    NodeId
);
id!(
    /// Index into [`crate::Graph::consts`].
    ConstId
);
id!(
    /// Index into [`crate::Graph::files`].
    FileId
);
id!(
    /// Index into the packed model's weight table (and into the recipes that make it).
    PackedId
);
