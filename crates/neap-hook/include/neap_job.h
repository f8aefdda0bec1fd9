/* Where a job begins and ends, for programs with deadlines. Without the library under the program nothing happens:
 *
 *     neap_job_begin();
 *     launch(...);
 *     neap_job_end();
 */
#ifndef NEAP_JOB_H
#define NEAP_JOB_H

#ifdef __cplusplus
extern "C" {
#endif

/* Waits until the card is the program's own and all of its memory is there. 0, or an error of the driver. */
__attribute__((weak)) int neap_job_begin(void);

/* Waits until the card has done the job's work, and gives the card back. 0, or an error of the driver. */
__attribute__((weak)) int neap_job_end(void);

#ifdef __cplusplus
}
#endif

#endif
