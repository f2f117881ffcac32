# SPDX-License-Identifier: Apache-2.0
# Has the units that were just installed start the program below the same prefix, which is known now
# and not when the build is configured. gemini_bindir: where programs are below it.
foreach(unit IN ITEMS user/geminid.service system/geminid@.service)
  set(path "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/systemd/${unit}")
  file(READ "${path}" text)
  # In quotes, for there may be a space in it.
  string(REPLACE "ExecStart=/usr/local/bin/geminid"
                 "ExecStart=\"${CMAKE_INSTALL_PREFIX}/${gemini_bindir}/geminid\"" text "${text}")
  file(WRITE "${path}" "${text}")
endforeach()
