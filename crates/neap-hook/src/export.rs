//! How functions of ours get the driver's names, and how `dlsym` and `cuGetProcAddress` find them.

/// A function of ours with the name of the driver's.
pub struct Entry {
    pub name: &'static str,
    pub function: *const (),
}

// SAFETY: functions may be called on every thread.
unsafe impl Sync for Entry {}

/// Functions with the driver's names, and the table of them, `ENTRIES`.
macro_rules! export {
    ($($(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$about])*
            ///
            /// # Safety
            /// As the driver's function of this name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::real::Status $body
        )*

        pub static ENTRIES: &[$crate::export::Entry] = &[
            $($crate::export::Entry {
                name: stringify!($name),
                function: $name as *const (),
            }),*
        ];
    };
}
pub(crate) use export;

/// Functions that give the card work: they pass the gate, and are the driver's otherwise.
///
/// All arguments are numbers or pointers, which calls pass in whole registers or whole words of the stack, whatever
/// their width. So words stand for all of them.
macro_rules! gated {
    ($([$($name:ident)+] $arguments:tt;)*) => {
        $($($crate::export::gated! { @function $name $arguments })+)*

        pub static ENTRIES: &[$crate::export::Entry] = &[
            $($($crate::export::Entry {
                name: stringify!($name),
                function: $name as *const (),
            }),+),*
        ];
    };
    (@function $name:ident ($($argument:ident)*)) => {
        /// The driver's function of this name, when the program has its turn.
        ///
        /// # Safety
        /// As the driver's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($argument: usize),*) -> $crate::real::Status {
            $crate::work::pass(|| $crate::real::driver!($name($($argument => usize),*)))
        }
    };
}
pub(crate) use gated;
