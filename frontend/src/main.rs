//! The `carousel` binary; what it does is in the library.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    carousel_frontend::cli::main(std::env::args_os())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use carousel_frontend::cli::memory::reserve;

    /// Pages that this process has touched for the first time.
    fn faults() -> i64 {
        // SAFETY: zero is a value of each of its fields.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: it is where the answer goes.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) }, 0);
        usage.ru_minflt
    }

    #[test]
    fn memory_that_has_been_reserved_is_allocated_first() {
        const BYTES: usize = 256 << 20;
        const BLOCK: usize = 1 << 20;
        let touched = |bytes: usize| {
            let before = faults();
            let blocks: Vec<Vec<u8>> = (0..bytes / BLOCK).map(|number| vec![number as u8; BLOCK]).collect();
            assert!(blocks.iter().zip(0..).all(|(block, number)| block[BLOCK / 2] == number as u8));
            (faults() - before) as usize
        };
        // Pages may have more than 4 KiB.
        let fresh = touched(BYTES / 2);
        assert!(fresh > 0);
        reserve(BYTES as u64).expect("there is so much memory");
        let ready = touched(BYTES / 2);
        assert!(
            ready < fresh / 10,
            "{ready} pages of memory that was reserved were new, of other memory {fresh}"
        );
    }
}
