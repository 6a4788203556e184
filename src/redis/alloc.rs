//! Allocates with the server's allocator, so that the memory of locks shows in `used_memory` and counts against
//! `maxmemory`.
//!
//! The allocator of redis-module has no realloc, and rounds sizes instead of aligning.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;

use redis_module::raw;

/// The alignment that the server's allocator guarantees in every build, on 64-bit machines.
const SERVER_ALIGN: usize = 8;

/// The server's allocator; the system's for rare larger alignments.
pub(crate) struct ServerAlloc;

// SAFETY: 1. Blocks of an alignment of at most SERVER_ALIGN come from and go back to the server's allocator, which is
// malloc-compatible. All others come from and go back to the system's. `layout` is the same at both ends, so the two
// never mix. 2. The server's functions are set before the first allocation: RedisModule_OnLoad calls
// Export_RedisModule_Init first and allocates nothing before. 3. A missing function yields null, which is how
// GlobalAlloc reports failure.
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > SERVER_ALIGN {
            // SAFETY: the caller's contract is the same.
            return unsafe { System.alloc(layout) };
        }
        // SAFETY: see 2 above; a size of 0 is excluded by the caller's contract.
        unsafe { raw::RedisModule_Alloc.map_or(std::ptr::null_mut(), |alloc| alloc(layout.size())) }.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() > SERVER_ALIGN {
            // SAFETY: the caller's contract is the same.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as in alloc.
        unsafe { raw::RedisModule_Calloc.map_or(std::ptr::null_mut(), |calloc| calloc(1, layout.size())) }
            .cast()
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() > SERVER_ALIGN {
            // SAFETY: `block` came from System, see 1 above.
            return unsafe { System.realloc(block, layout, size) };
        }
        let block: *mut c_void = block.cast();
        // SAFETY: `block` came from the server's allocator, see 1 above.
        unsafe { raw::RedisModule_Realloc.map_or(std::ptr::null_mut(), |realloc| realloc(block, size)) }
            .cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.align() > SERVER_ALIGN {
            // SAFETY: `block` came from System, see 1 above.
            return unsafe { System.dealloc(block, layout) };
        }
        // SAFETY: `block` came from the server's allocator, see 1 above.
        unsafe {
            if let Some(free) = raw::RedisModule_Free {
                free(block.cast());
            }
        }
    }
}
