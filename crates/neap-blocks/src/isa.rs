//! Instruction sets, chosen at run time.

/// An instruction set that this processor has; holding one is the proof. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(pub(crate) Kind);

/// The instruction sets known to this build, best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
}

const ALL: &[(Kind, &str)] = &[
    (Kind::Portable, "portable"),
    #[cfg(target_arch = "x86_64")]
    (Kind::Avx2, "avx2"),
    #[cfg(target_arch = "x86_64")]
    (Kind::Avx512Vnni, "avx512vnni"),
    #[cfg(target_arch = "aarch64")]
    (Kind::Neon, "neon"),
    #[cfg(target_arch = "aarch64")]
    (Kind::NeonDot, "neon-dot"),
];

impl Isa {
    /// The best instruction set of this processor. Ask once and pass the answer on.
    #[must_use]
    pub fn detect() -> Self {
        let mut best = Isa(Kind::Portable);
        for isa in Self::available() {
            best = isa;
        }
        best
    }

    /// Every instruction set of this processor, from portable to best.
    pub fn available() -> impl Iterator<Item = Isa> {
        ALL.iter()
            .filter(|(kind, _)| has(*kind))
            .map(|&(kind, _)| Isa(kind))
    }

    /// A short lower-case name: `portable`, `avx2`, `avx512vnni`, `neon`, `neon-dot`.
    #[must_use]
    pub fn name(self) -> &'static str {
        ALL.iter()
            .find(|(kind, _)| *kind == self.0)
            .map_or("portable", |&(_, name)| name)
    }
}

fn has(kind: Kind) -> bool {
    match kind {
        Kind::Portable => true,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => {
            std::arch::is_x86_feature_detected!("avx2")
                && std::arch::is_x86_feature_detected!("fma")
                && std::arch::is_x86_feature_detected!("f16c")
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => {
            has(Kind::Avx2)
                && std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512bw")
                && std::arch::is_x86_feature_detected!("avx512dq")
                && std::arch::is_x86_feature_detected!("avx512vl")
                && std::arch::is_x86_feature_detected!("avx512vnni")
        }
        // Part of the architecture's baseline.
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => true,
        #[cfg(target_arch = "aarch64")]
        Kind::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
    }
}
