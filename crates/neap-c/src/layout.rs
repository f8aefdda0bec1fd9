//! Where fields lie in the structures that C programs share with the library, as long as it is `libneaptide.so.0`. Programs were built
//! with these numbers: another number here breaks them, and wants another name of the library.

#[cfg(target_pointer_width = "64")]
const _: () = {
    use crate::failure::NeapStatus;
    use crate::session::{NeapDeclared, NeapResult};
    use crate::tensor::{NeapPlace, NeapTensor, NeapType};
    use std::mem::{offset_of, size_of};

    assert!(size_of::<NeapStatus>() == 4 && size_of::<NeapType>() == 4);

    assert!(size_of::<NeapDeclared>() == 32);
    assert!(offset_of!(NeapDeclared, name) == 0);
    assert!(offset_of!(NeapDeclared, element_type) == 8);
    assert!(offset_of!(NeapDeclared, has_rank) == 12);
    assert!(offset_of!(NeapDeclared, rank) == 16);
    assert!(offset_of!(NeapDeclared, dims) == 24);

    assert!(size_of::<NeapTensor>() == 40);
    assert!(offset_of!(NeapTensor, element_type) == 0);
    assert!(offset_of!(NeapTensor, rank) == 8);
    assert!(offset_of!(NeapTensor, dims) == 16);
    assert!(offset_of!(NeapTensor, data) == 24);
    assert!(offset_of!(NeapTensor, len_bytes) == 32);

    assert!(size_of::<NeapResult>() == 32);
    assert!(offset_of!(NeapResult, element_type) == 0);
    assert!(offset_of!(NeapResult, rank) == 8);
    assert!(offset_of!(NeapResult, dims) == 16);
    assert!(offset_of!(NeapResult, len_bytes) == 24);

    assert!(size_of::<NeapPlace>() == 16);
    assert!(offset_of!(NeapPlace, data) == 0);
    assert!(offset_of!(NeapPlace, len_bytes) == 8);
};
