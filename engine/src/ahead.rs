//! Fetching what will be looked at into the cache. What many operations look at is scattered: they are taken through
//! the same steps side by side, and each step asks for the memory of the next one, so that their waits overlap.

/// Bytes that are fetched together.
const LINE: usize = 64;

/// Begins to fetch the memory at a place. It is a hint: the place may be anything.
#[inline(always)]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_variables))]
pub(crate) fn fetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such machine has the instruction; it accesses nothing, so that no address is wrong.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{place}]", place = in(reg) place,
            options(nostack, preserves_flags, readonly));
    }
}

/// As [`fetch`], the whole of a value.
#[inline(always)]
pub(crate) fn fetch_all<T>(value: *const T) {
    let start = value.cast::<u8>();
    let lines = (size_of::<T>() + start.addr() % LINE).div_ceil(LINE);
    (0..lines).for_each(|line| fetch(start.wrapping_add(line * LINE)));
}

/// As [`fetch`], an element of a slice; the index may be beyond its end.
#[inline(always)]
pub(crate) fn fetch_at<T>(slice: &[T], index: usize) {
    fetch(slice.as_ptr().wrapping_add(index));
}
