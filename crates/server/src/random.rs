//! The server's source of randomness, in one place.

/// 64 random bits.
pub(crate) fn bits() -> u64 {
    getrandom::u64().unwrap_or_else(|error| {
        // Without the kernel's generator there is nothing to fall back on that would still be safe for secrets.
        panic!("the kernel gives no random numbers: {error}")
    })
}

/// A secret of 256 bits, as text.
pub(crate) fn secret() -> String {
    (0..4).map(|_| format!("{:016x}", bits())).collect()
}

/// Random bytes.
pub(crate) fn fill(bytes: &mut [u8]) {
    // As for [`bits`].
    getrandom::fill(bytes).unwrap_or_else(|error| panic!("the kernel gives no random numbers: {error}"));
}
