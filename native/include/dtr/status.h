/* dtr/status.h: statuses, versions and messages. */
#ifndef DTR_STATUS_H
#define DTR_STATUS_H

#include <stdint.h>

/* What stands between these has C linkage in C++, too. */
#ifdef __cplusplus
#define DTR_C_BEGIN extern "C" {
#define DTR_C_END }
#else
#define DTR_C_BEGIN
#define DTR_C_END
#endif

DTR_C_BEGIN

/* CFFI BEGIN */

enum {
  DTR_OK = 0,
  DTR_OUT_OF_MEMORY = 1, /* the budget cannot hold the request, whatever is evicted */
  DTR_INVALID = 2, /* an argument is wrong; the message names it, its value and what is allowed */
  DTR_DRIVER = 3,  /* the driver (mmap, libcuda) refused a call; the message names the call */
  DTR_STATE = 4    /* the object is not in a state that allows this call */
};

/* Returns the version of this interface. The extension, the bridge and the Python package
 * compare it before they use anything else. Never fails. */
int32_t dtr_abi_version(void);

/* Returns the message of this thread's last failed call; "" if none failed. Never fails.
 * Owner: the library, until this thread's next call. */
const char* dtr_last_error(void);

/* CFFI END */

DTR_C_END

#endif
